"""What everything rests on: units, element types, errors, configuration files and fields."""
