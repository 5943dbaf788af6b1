"""The reverse-mode rules by family; an op's rule is named in its OpSpec."""
