// scale
