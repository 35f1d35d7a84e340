"""From an encoder and a collection to a model, without a single pair: `collection` fits codes and a small decoder to vectors,
`folder` does all of it from files to an index (`genius index PHOTOS --encoder URI`)."""
