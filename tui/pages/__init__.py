"""The screens beside the mesh and the log: one module each, from the model to rows of text."""
