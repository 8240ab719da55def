"""Plots of evaluations and training runs as PNG, SVG or PDF files, drawn with matplotlib.

`results` draws models' accuracies, and `curves` draws learning curves. `files` draws the contents of the files passed
to `rg-env plot`, and `style` contains settings and helpers for all plots. HTML reports do not use these plots. Report
pages draw their own charts in the browser (`evaluation/report/page/charts.js`).
"""
