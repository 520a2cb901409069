import sys

import pytest

from skytrain.config import discover, folders_with


@pytest.fixture
def package(tmp_path, monkeypatch):
    files = {
        "__init__.py": "",
        "zinc.py": "METAL = 'Zn'",
        "base.py": "raise_nothing = 1",
        "_hidden.py": "METAL = 'no'",
        "iron/__init__.py": "METAL = 'Fe'",
        "iron/target.py": "",
        "tin/__init__.py": "",
    }
    for name, text in files.items():
        path = tmp_path / "metals" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "metals"
    for name in [name for name in sys.modules if name.partition(".")[0] == "metals"]:
        del sys.modules[name]


def test_a_registry_is_the_modules_and_folders_that_define_its_constant(package):
    assert list(discover(package, "METAL").items()) == [("iron", "Fe"), ("zinc", "Zn")]


def test_folders_with_a_module_are_known_without_loading_it(package):
    assert folders_with(package, "target") == ["iron"]
    assert "metals.iron.target" not in sys.modules
