"""The metrics of `text_similarity` graders, from the libraries that OpenAI's own image for graders has: rapidfuzz, NLTK and
rouge-score. OpenAI does not say how it splits and smooths; here words are NLTK's, scores are those of one sentence, BLEU smooths
counts of 0 (method 1 of Chen and Cherry, 2014) and ROUGE is the F1 score without stemming."""

from __future__ import annotations

import importlib.util
from typing import Any

from ajet import ConfigError

_PACKAGES = {"fuzzy_match": "rapidfuzz", "bleu": "nltk", "gleu": "nltk", "meteor": "nltk"}


def check_available(metric: str) -> None:
    """Raises ConfigError that names the package, or the data, that a metric needs and that is not installed."""
    package = _PACKAGES.get(metric, "rouge_score")
    if importlib.util.find_spec(package) is None:
        raise ConfigError(
            f"the metric {metric} needs {package.replace('_', '-')}. Install pip install 'ajet-plugin-judges[openai]'."
        )
    if metric == "meteor":
        _wordnet()


def _wordnet() -> Any:
    import nltk
    from nltk.corpus import wordnet

    try:
        nltk.data.find("corpora/wordnet.zip")
    except LookupError:
        raise ConfigError(
            "the metric meteor needs NLTK's WordNet. Fetch it: python -m nltk.downloader wordnet"
        ) from None
    return wordnet


def similarity(metric: str, text: str, reference: str) -> float:
    """How similar a text is to the reference, from 0 to 1, by any metric but ``cosine``."""
    if metric == "fuzzy_match":
        from rapidfuzz import fuzz, utils

        return float(fuzz.WRatio(text, reference, processor=utils.default_process)) / 100
    if metric.startswith("rouge_"):
        from rouge_score.rouge_scorer import RougeScorer

        kind = metric.replace("rouge_", "rouge").replace("rougel", "rougeL")
        return float(RougeScorer([kind]).score(reference, text)[kind].fmeasure)
    words, expected = _words(text), _words(reference)
    if metric == "meteor":
        from nltk.translate.meteor_score import single_meteor_score

        return float(single_meteor_score(expected, words, wordnet=_wordnet()))
    if not words or not expected:
        return float(words == expected)
    if metric == "gleu":
        from nltk.translate.gleu_score import sentence_gleu

        return float(sentence_gleu([expected], words))
    from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu

    smooth = SmoothingFunction().method1
    return float(sentence_bleu([expected], words, smoothing_function=smooth, auto_reweigh=True))


def _words(text: str) -> list[str]:
    from nltk.tokenize import NLTKWordTokenizer

    words: list[str] = NLTKWordTokenizer().tokenize(text)
    return words
