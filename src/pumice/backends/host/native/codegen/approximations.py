"""Coefficients of functions in float32, for NumPy and for compiled kernels alike; the highest power comes first."""

# erf(x) on [-4, 4] as x P(x²)/Q(x²), float32 accurate; beyond, it is ±1 in float32.
ERF_P = (
    -2.72614225801306e-10,
    2.77068142495902e-08,
    -2.10102402082508e-06,
    -5.69250639462346e-05,
    -7.34990630326855e-04,
    -2.95459980854025e-03,
    -1.60960333262415e-02,
)
ERF_Q = (-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03, -1.42647390514189e-02)

# erfc(z) for z ≥ 0 is t exp(P(t) - z²) with t = 1/(1 + z/2), to a relative error of about 1e-7 in the whole tail.
ERFC = (
    0.17087277,
    -0.82215223,
    1.48851587,
    -1.13520398,
    0.27886807,
    -0.18628806,
    0.09678418,
    0.37409196,
    1.00002368,
    -1.26551223,
)
GELU_ZERO = 20.0  # the normal distribution's tail from here on is 0 in float32
