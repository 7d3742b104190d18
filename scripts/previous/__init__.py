"""Old and new code side by side: the cases, and what each side needs to run them."""
