"""How much the service takes on, and how it says that something is too much or wrong."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import HTTPException


@dataclass(frozen=True)
class Limits:
    """What one request and all of them together may cost.

    Attributes:
        upload_bytes: Largest upload.
        pixels: Most pixels of an image, whatever its file's size.
        requests: Requests worked on or waiting at a time; more are told to come back (429).
        seconds: Time for a request, its upload included; what takes longer is given up (503).
        batch: Most images in one call of the model.
        wait_ms: How long a call of the model waits for images that are being decoded.
        remembered_bytes: Room for local features of images seen, so that a new selection needs no new look at them.
        sampled: Images of the index that are looked at to tell what the prototypes like.
    """

    upload_bytes: int = 20_000_000
    pixels: int = 50_000_000
    requests: int = 64
    seconds: float = 30.0
    batch: int = 16
    wait_ms: float = 4.0
    remembered_bytes: int = 64_000_000
    sampled: int = 1000


class Refusal(HTTPException):
    """A request that is not served: its status, and a sentence of what is wrong and what to do."""

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(status, detail, headers)
