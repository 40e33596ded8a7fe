"""LoRA adapters over a model, and the folders that they are kept in. The backbones `local` and `verl` train them; this package
knows neither."""
