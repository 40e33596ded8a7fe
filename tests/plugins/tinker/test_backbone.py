"""The backbone tinker keeps what every backbone promises."""


def test_it_keeps_to_the_contract_of_backbones(check_backbone, folder, section, tmp_path):
    check_backbone("tinker", model=str(folder), folder=tmp_path, section=section)
