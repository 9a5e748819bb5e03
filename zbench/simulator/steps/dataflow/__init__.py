"""Follows who makes what somebody reads inside a template, atom by atom."""
