"""What is wrong with a request, said before anything starts."""


class RequestError(Exception):
    """The request was wrong; nothing was started. One line a problem."""
