//! Controller weights from a safetensors file, under the names of the paper's checkpoints.

use std::path::Path;

use crate::{
    Error, Result,
    aah::{
        Controller,
        controller::{ControllerWeights, Pairwise},
        features::FEATURES,
        network::{Dense, Mlp},
    },
    model::WeightStore,
};

/// Gives a controller the weights in a file: `blocks.L.attn.controller.mlp.N.weight|bias` for every layer, and
/// `…joint_sibling_scorer.mlp…` or `…pairwise.mlp…` where siblings are compared.
///
/// # Errors
/// Names the first network that is missing or does not fit the controller's setting.
pub fn read_controller(path: &Path, mut controller: Controller) -> Result<Controller> {
    let store = WeightStore::open(&[path.to_owned()])?;
    let config = controller.config.clone();
    let input = config.input_mode.width(FEATURES);
    let n_windows = config.windows.len();
    for layer in 0..controller.layers.len() {
        let network = |part: &str, input: usize, output: usize| -> Result<Mlp> {
            let prefix = format!("blocks.{layer}.attn.{part}.mlp");
            let refuse = |message: String| Error::Weights {
                origin: path.display().to_string(),
                message,
            };
            let mlp = read_mlp(&store, &prefix)?
                .ok_or_else(|| refuse(format!("the network {prefix} is missing")))?;
            if (mlp.input(), mlp.output()) != (input, output) {
                return Err(refuse(format!(
                    "the network {prefix} goes from {} to {} numbers, but this setting needs {input} to {output}",
                    mlp.input(),
                    mlp.output()
                )));
            }
            Ok(mlp)
        };
        let weights = ControllerWeights {
            own: network("controller", input, n_windows)?,
            sibling_bias: (config.pairwise == Pairwise::SiblingBias)
                .then(|| network("pairwise", input, n_windows))
                .transpose()?,
            joint: (config.pairwise == Pairwise::JointSibling)
                .then(|| network("joint_sibling_scorer", 4 * input, 2 * n_windows))
                .transpose()?,
        };
        controller.set_weights(layer, weights);
    }
    Ok(controller)
}

fn read_mlp(store: &WeightStore, prefix: &str) -> Result<Option<Mlp>> {
    let mut layers = Vec::new();
    // Activations take the odd places.
    for index in (0..16).step_by(2) {
        let (weight, bias) = (
            format!("{prefix}.{index}.weight"),
            format!("{prefix}.{index}.bias"),
        );
        let Some([out, input]) = store
            .shape(&weight)
            .and_then(|s| <[usize; 2]>::try_from(s).ok())
        else {
            break;
        };
        let dense = Dense::new(
            store.values(&weight, &[out, input])?,
            store.values(&bias, &[out])?,
        );
        match dense {
            Some(dense) => layers.push(dense),
            None => break,
        }
    }
    Ok(Mlp::new(layers))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aah::{AahConfig, Regime, features::HeadMoments};

    #[test]
    fn the_papers_checkpoint_is_read_and_misfits_are_named() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/gpt_loss.safetensors");
        let config = AahConfig::for_inspection(Regime::FullAdaptive, vec![8, 16, 32, 64], 0);
        let random = Controller::new(config.clone(), 3, 12);
        let mut read = read_controller(&path, random.clone()).unwrap();
        assert_ne!(read, random);
        assert!(
            read.choose_layer(0, vec![HeadMoments::default(); 12], 64)
                .is_ok()
        );

        let more = read_controller(&path, Controller::new(config.clone(), 4, 12)).unwrap_err();
        assert!(
            more.to_string()
                .contains("blocks.3.attn.controller.mlp is missing"),
            "{more}"
        );
        let fewer = AahConfig {
            windows: vec![8, 16],
            ..config
        };
        let misfit = read_controller(&path, Controller::new(fewer, 3, 12)).unwrap_err();
        assert!(
            misfit
                .to_string()
                .contains("29 to 4 numbers, but this setting needs 29 to 2"),
            "{misfit}"
        );
    }
}
