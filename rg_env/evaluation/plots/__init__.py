"""Plots of evaluations and training runs as PNG, SVG or PDF files, drawn with matplotlib.

`results` draws the accuracies of models, and `curves` draws learning curves. `files` draws whatever the given files
contain (`rg-env plot`), and `style` has what all plots share. HTML reports do not use these plots: their pages draw
their own charts in the browser (`evaluation/report/page/charts.js`).
"""
