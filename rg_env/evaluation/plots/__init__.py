"""Plots of evaluations and training runs as PNG, SVG or PDF files, drawn with matplotlib.

`results` draws the accuracies of models, and `curves` draws learning curves. `files` draws the contents of given files
(`rg-env plot`), and `style` contains what all plots share. HTML reports do not use these plots. Their pages draw their
own charts in the browser (`evaluation/report/page/charts.js`).
"""
