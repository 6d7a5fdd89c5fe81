"""minicl's packaging; tool settings are in pyproject.toml, tested versions in constraints.txt."""

from pathlib import Path

from setuptools import setup

TREES = ["scikit-learn>=1.3"]
TEST = ["pytest>=7", "pytest-cov>=4", "pytest-xdist>=3", "hypothesis>=6", "ruff>=0.6", "transformers>=4.40"]

setup(
    name="minicl",
    version="0.1.0",
    description="A small laboratory for who may look at whom when a transformer learns in context",
    long_description=(Path(__file__).parent / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    packages=["minicl"],
    python_requires=">=3.10",
    install_requires=["torch>=2.5", "numpy>=1.24", "matplotlib>=3.7", "tqdm>=4.60"],
    extras_require={"trees": TREES, "test": TREES + TEST},
    entry_points={"console_scripts": ["minicl = minicl.cli:main"]},
)
