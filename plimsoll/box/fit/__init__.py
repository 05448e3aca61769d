"""Will it fit? Engine command lines, the files of a model, and the memory of a box, brought down to bytes."""
