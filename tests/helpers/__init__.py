"""What more than one folder of tests needs: models, made-up files and sensors, comparisons."""
