"""Receipts that prove what ran: documents of routes, signed and chained, checked without a device."""
