import subprocess
import sys

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


def test_on_machines_no_class_comes_from_the_working_folder(tmp_path):
    (tmp_path / "planted.py").write_text("class Model: pass\n")
    code = "from skytrain.config import make; make('planted.Model', {}, key='model.target')"
    at_home, on_a_machine = (
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONSAFEPATH": safe}, capture_output=True)
        for safe in ("", "1")
    )
    assert at_home.returncode == 0
    assert on_a_machine.returncode != 0 and b"no module named 'planted'" in on_a_machine.stderr
