"""What every other part rests on: units, element types, errors, documents within limits."""
