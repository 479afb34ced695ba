"""The parts of `report.html`: small functions that turn what is known of a run into HTML, escaped by construction."""
