"""What came of a sweep: its runs read, compared, drawn and put into tables."""
