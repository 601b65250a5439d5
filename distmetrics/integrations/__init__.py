"""Layer 5: distmetrics inside other trainers. Thin: each module is imported by who uses that
trainer.
"""
