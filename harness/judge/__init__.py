"""Results are judged: statistics, goldens, the gate, predicted beside measured."""
