"""An index behind the interfaces of other libraries: `langchain` and `llamaindex`. Each module needs that library."""
