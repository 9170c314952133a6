project       = "example-project"
region        = "europe-west1"
gcp_region    = "europe-west1"
cidr          = "10.22.0.0/20"
machine_image = "projects/example-project/global/images/nightside-1"
machine_type  = "e2-standard-2"
slots = {
  a = { zone = "europe-west1-b", secrets = ["projects/example-project/secrets/europe-west1a"] }
  b = { zone = "europe-west1-c", secrets = ["projects/example-project/secrets/europe-west1b"] }
}
shared_secrets = ["projects/example-project/secrets/keys"]
replicas       = { europe-west1a = [{ id = "vllm-2", url = "http://10.40.0.12:8000", models = ["Qwen/Qwen3-8B"] }] }
jurisdiction   = "EU"
package        = { file = "tests/package.tar.gz", sha256 = "c0703a5bd33b55186b6e90aeaef21861d1386701e617c72dea750610846e2cde" }
policy_file    = "tests/policy.yaml"
engines        = { cidrs = ["10.40.0.0/16"], ports = [8000] }
latitude       = 50.45
longitude      = 3.82
peers          = { us-east-1a = { region = "us-east-1", jurisdiction = "US", address = "203.0.113.7:7070" } }
controllers    = ["198.51.100.10:7090", "198.51.100.11:7090"]
settings       = { limits = { keep_alive_comments = "30s" } }
