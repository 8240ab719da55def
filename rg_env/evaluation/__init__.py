"""Models on tasks: asked, scored and compared, and what people look at of it: tables, pictures, a page."""
