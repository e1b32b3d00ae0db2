"""The paper's tables, figures and ablations: what they are, computing them, and what is there."""
