"""Networks that timm lacks, with the few members of timm's interface that we call."""
