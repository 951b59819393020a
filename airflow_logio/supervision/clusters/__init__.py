"""Drivers on clusters, looked after: what their managers say, what that means, and the ends of those that are left."""
