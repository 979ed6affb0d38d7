"""What the editable install of CONTRIBUTING.md promises: the package is imported in the folder that holds the clone,
its data are found, and mypy sees its types without being told where. Run there, by the Python of the environment.
"""

import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

CLONE = Path("servesweep")
RIGHT = """\
import servesweep

found: servesweep.Model = servesweep.model("llama-3.1-8b")
"""
WRONG = 'servesweep.simulate([servesweep.Request("A", 0, 4, "three")], max_running=1)\n'

# 1. `import servesweep` in the folder that holds a folder of this name, as `python -c` and `python -m` would do it.
assert CLONE.joinpath("sweep").is_dir(), "run this in the folder that holds the clone"
assert not CLONE.joinpath("__init__.py").exists()
sys.path.insert(0, os.getcwd())
import servesweep  # noqa: E402
import servesweep.kernels.engine  # noqa: E402

home = Path(str(servesweep.__file__))
assert home.resolve() == CLONE.joinpath("sweep", "__init__.py").resolve(), home
engine = Path(str(servesweep.kernels.engine.__file__))
assert engine.resolve() == CLONE.joinpath("kernels", "engine.py").resolve(), engine
done = subprocess.run([sys.executable, "-m", "servesweep", "--version"], capture_output=True, text=True, check=True)
assert done.stdout.startswith("servesweep "), done.stdout

# 2. The data of the packages.
folders = {"servesweep": "sweep", "servesweep.reports": "sweep/reports", "servesweep.configs": "configs"}
data = {"servesweep": ["py.typed"]}
data["servesweep.reports"] = [f"page/{path.name}" for path in CLONE.joinpath("sweep", "reports", "page").iterdir()]
data["servesweep.configs"] = [path.name for path in CLONE.joinpath("configs").glob("*.toml")]
for package, names in data.items():
    assert names, package
    for name in names:
        assert files(package).joinpath(name).read_bytes() == CLONE.joinpath(folders[package], name).read_bytes(), name

# 3. mypy on the file of somebody who uses the package, here and elsewhere: it finds what is wrong, and nothing else.
elsewhere = Path(sys.argv[1])
for where in (Path(), elsewhere):
    file = where / "uses_servesweep.py"
    for text, expected in ((RIGHT, 0), (RIGHT + WRONG, 1)):
        file.write_text(text, encoding="utf-8")
        mypy = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(elsewhere / "mypy"), file.name]
        found = subprocess.run(mypy, cwd=where, capture_output=True, text=True)
        assert found.returncode == expected, found.stdout + found.stderr
        assert ('Argument 4 to "Request" has incompatible type "str"; expected "int"' in found.stdout) == bool(expected)
    file.unlink()

print(f"imported from {home.parent}; {sum(map(len, data.values()))} data files; mypy finds the wrong call")
