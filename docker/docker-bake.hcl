# Both architectures with buildx: `docker buildx bake -f docker/docker-bake.hcl`, from the repository's root.
# docker/image.py (`make image`) builds one architecture with any BuildKit, and records what came out.

variable "TAG" { default = "sparkserve:dev" }
variable "VERSION" { default = "0" }
variable "REVISION" { default = "unknown" }
# By digest for a release: the manifest records it.
variable "BASE_IMAGE" { default = "debian:trixie-slim" }

group "default" { targets = ["gpu"] }

target "common" {
  context    = "."
  dockerfile = "docker/Dockerfile"
  args = {
    BASE_IMAGE = BASE_IMAGE
    VERSION    = VERSION
    REVISION   = REVISION
  }
}

# The published image.
target "gpu" {
  inherits  = ["common"]
  args      = { TARGET = "gpu" }
  platforms = ["linux/amd64", "linux/arm64"]
  tags      = [TAG]
}

# With the reference engine and the fixtures: tests only, never published.
target "cpu" {
  inherits  = ["common"]
  args      = { TARGET = "cpu" }
  platforms = ["linux/amd64"]
  tags      = ["sparkserve:cpu"]
}
