"""Holdfast inside other systems that start work on many machines; each file needs the package it is named after."""
