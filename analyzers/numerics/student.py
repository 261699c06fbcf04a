"""Student's t, for intervals of means of few numbers."""


def student_t(freedom: int) -> float:
    """So many standard errors about a mean hold 95 % of cases: the t with P(|T| <= t) = 0.95, ``freedom`` degrees of freedom, 1 or more."""
    if freedom < 1:
        raise ValueError(f"Student's t has at least 1 degree of freedom, not {freedom}.")
    from scipy.special import stdtrit  # here, for most commands need no SciPy, which takes a while to import

    return float(stdtrit(freedom, 0.975))
