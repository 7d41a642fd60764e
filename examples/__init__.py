"""Small applications, each as you would write it. ``make example`` runs them on an embedded Kinesis."""
