"""HTTP routes: translate requests to calls of the service and back. No logic of their own."""
