import pytest

from skytrain.config import ConfigError, make


def test_a_class_is_made_from_its_path_and_arguments():
    assert make("fractions.Fraction", {"numerator": 3, "denominator": 4}, key="k") == make(
        "fractions.Fraction", {"numerator": "3/4"}, key="k"
    )


@pytest.mark.parametrize(
    ("target", "args", "key", "part"),
    [
        ("nowhere.Thing", {}, "k", "no module named 'nowhere'"),
        ("fractions.Fracton", {}, "k", "did you mean fractions.Fraction"),
        ("Fraction", {}, "k", "package.module.Class"),
        ("fractions.Fraction", {"numerater": 1}, "k.numerater", "did you mean k.numerator"),
        ("types.SimpleNamespace.__init__", {}, "k", "no module"),
        ("zipfile.ZipFile", {}, "k.file", "needs it"),
    ],
)
def test_a_wrong_plugin_is_named_with_its_key(target, args, key, part):
    with pytest.raises(ConfigError) as error:
        make(target, args, key="k")
    assert error.value.key == key
    assert part in str(error.value)


def test_an_import_that_fails_inside_the_users_module_is_shown_as_it_is(tmp_path, monkeypatch):
    (tmp_path / "broken_plugin.py").write_text("import not_installed_anywhere\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        make("broken_plugin.Thing", {}, key="k")
