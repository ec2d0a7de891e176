"""What only this project runs: fits on published rows, their scores, pages, the GPU campaign."""
