"""Generation by Seesaw on processes, beside one process: tokens, changes of layout and bytes."""
