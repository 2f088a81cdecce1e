"""Lightning on all nodes: it finds the world in the variables of torch.distributed."""

import os

import lightning
import torch


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 2)

    def training_step(self, batch, _):
        inputs, labels = batch
        loss = torch.nn.functional.cross_entropy(self.layer(inputs), labels)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


inputs = torch.randn(512, 64)
data = torch.utils.data.TensorDataset(inputs, (inputs.sum(1) > 0).long())
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    num_nodes=int(os.environ["WORLD_SIZE"]) // int(os.environ["LOCAL_WORLD_SIZE"]),
    max_epochs=2,
    log_every_n_steps=1,
    default_root_dir=os.environ["GPUBED_RUN_DIR"],
    logger=lightning.pytorch.loggers.TensorBoardLogger("."),
)
trainer.fit(Model(), torch.utils.data.DataLoader(data, batch_size=64))
print(f"lightning: rank {trainer.global_rank} of {trainer.world_size}")
