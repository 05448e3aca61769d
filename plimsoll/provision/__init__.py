"""How a deploy runs through pyinfra: look, plan, apply layer by layer, prove a login, look again."""
