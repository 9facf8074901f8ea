"""The paper's synthetic study: four tasks whose exact posteriors are known."""
