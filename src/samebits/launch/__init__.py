"""Starting the ranks of an arm and waiting for them."""
