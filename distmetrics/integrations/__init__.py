"""distmetrics inside other trainers: one thin module each, which their users import."""
