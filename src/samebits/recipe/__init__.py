"""Reading what a person writes: recipes, cluster files, image names. Host only."""
