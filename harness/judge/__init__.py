"""Results are judged: statistics, goldens, the gate, predicted and measured."""
