"""The programs that read what we print, asked by their own parsers, and what they answered once."""
