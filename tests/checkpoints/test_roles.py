"""Roles, layers and buffers by the names that model families use."""

from time import process_time

import pytest

from analyzers.checkpoints.tensor_names.roles import ROLES, is_buffer, layer, role

_L = "model.layers.3."
_CASES = {
    "embedding": """model.embed_tokens.weight transformer.wte.weight transformer.wpe.weight wte.weight gpt_neox.embed_in.weight
        model.decoder.embed_positions.weight shared.weight transformer.word_embeddings.weight embeddings.word_embeddings.weight
        bert.embeddings.token_type_embeddings.weight vision_model.embeddings.patch_embedding.weight vision_model.embeddings.class_embedding
        vit.embeddings.cls_token backbone.embeddings.weight tok_embeddings.weight
        token_embd.weight position_embd.weight token_types.weight per_layer_token_embd.weight v.patch_embd.weight""",
    "attention": f"""{_L}self_attn.q_proj.weight {_L}self_attn.o_proj.bias {_L}self_attn.qkv_proj.weight h.0.attn.c_attn.weight
        h.0.attn.c_proj.bias
        gpt_neox.layers.0.attention.query_key_value.weight gpt_neox.layers.0.attention.dense.weight transformer.h.0.attn.out_proj.weight
        transformer.h.0.attn.attention.k_proj.weight model.decoder.layers.0.encoder_attn.out_proj.weight
        transformer.h.1.self_attention.query_key_value.weight encoder.block.0.layer.0.SelfAttention.q.weight
        decoder.block.0.layer.1.EncDecAttention.o.weight encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight
        bert.encoder.layer.0.attention.self.query.weight bert.encoder.layer.0.attention.output.dense.weight
        {_L}self_attn.kv_a_proj_with_mqa.weight
        {_L}self_attn.sinks distilbert.transformer.layer.0.attention.q_lin.weight layers.0.attention.wq.weight
        {_L}self_attn.q_proj.lora_A.weight {_L}self_attn.gate_proj.weight {_L}linear_attn.in_proj_qkvz.weight
        blk.3.attn_q.weight blk.3.attn_output.bias blk.3.attn_qkv.weight dec.blk.0.cross_attn_k.weight enc.blk.0.attn_rel_b.weight""",
    "mlp": f"""{_L}mlp.gate_proj.weight {_L}mlp.gate_up_proj.weight h.0.mlp.c_fc.weight gpt_neox.layers.0.mlp.dense_h_to_4h.weight
        model.decoder.layers.0.fc1.weight model.encoder.layers.0.fc2.bias encoder.block.0.layer.1.DenseReluDense.wi_0.weight
        bert.encoder.layer.0.intermediate.dense.weight bert.encoder.layer.0.output.dense.weight model.layers.0.mlp.c_proj.weight
        layers.0.feed_forward.w1.weight transformer.h.0.mlp.fc_in.weight {_L}mlp.shared_expert.gate_proj.weight
        {_L}mlp.shared_experts.down_proj.weight transformer.blocks.0.ffn.up_proj.weight
        blk.3.ffn_up.weight blk.3.ffn_down.bias blk.3.ffn_gate_shexp.weight {_L}mlp.down_proj.weight_packed""",
    "expert": f"""{_L}block_sparse_moe.experts.0.w1.weight {_L}mlp.experts.3.gate_proj.weight {_L}mlp.experts.gate_up_proj_blocks
        {_L}mlp.experts.gate_up_proj_scales {_L}mlp.experts.gate_up_proj_bias {_L}mlp.experts.down_proj
        encoder.block.1.layer.1.mlp.experts.expert_0.wi.weight {_L}mlp.switch_mlp.down_proj.weight
        blk.3.ffn_gate_exps.weight blk.3.ffn_gate_up_exps.weight blk.3.ffn_down_chexps.weight""",
    "router": f"""{_L}block_sparse_moe.gate.weight {_L}mlp.gate.weight {_L}mlp.router.weight {_L}mlp.router.bias
        {_L}mlp.gate.e_score_correction_bias {_L}mlp.shared_expert_gate.weight encoder.block.1.layer.1.mlp.router.classifier.weight
        transformer.blocks.0.ffn.router.layer.weight blk.3.ffn_gate_inp.weight blk.3.ffn_gate_inp_shexp.weight blk.3.exp_probs_b.bias""",
    "norm": f"""{_L}input_layernorm.weight {_L}post_attention_layernorm.weight {_L}self_attn.q_norm.weight {_L}self_attn.k_norm.weight
        {_L}self_attn.kv_a_layernorm.weight model.norm.weight ln_f.weight h.0.ln_1.bias model.decoder.final_layer_norm.weight
        transformer.h.0.ln_attn.weight transformer.h.0.ln_mlp.weight transformer.word_embeddings_layernorm.weight
        bert.encoder.layer.0.attention.output.LayerNorm.weight bert.embeddings.LayerNorm.bias encoder.block.0.layer.0.layer_norm.weight
        vision_model.pre_layrnorm.weight vit.encoder.layer.0.layernorm_before.weight backbone.norm_f.weight backbone.layers.0.norm.weight
        model.decoder.layers.0.self_attn_layer_norm.weight cls.predictions.transform.LayerNorm.weight bn1.running_mean
        {_L}pre_feedforward_layernorm.weight bert.embeddings.LayerNorm.gamma
        output_norm.weight blk.3.attn_norm.weight blk.3.ffn_norm.weight blk.3.attn_q_norm.weight token_embd_norm.weight""",
    "head": """lm_head.weight embed_out.weight output_layer.weight score.weight classifier.weight classifier.dense.weight output.weight
        cls.predictions.decoder.weight qa_outputs.weight v_head.summary.weight""",
    "other": """backbone.layers.0.mixer.in_proj.weight backbone.layers.0.mixer.A_log backbone.layers.0.mixer.conv1d.weight
        model.decoder.project_in.weight multi_modal_projector.linear.weight logit_scale x . ...""",
}


@pytest.mark.parametrize("expected", ROLES)
def test_role(expected: str) -> None:
    for name in _CASES[expected].split():
        assert role(name) == expected, name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("model.layers.31.mlp.experts.7.w1.weight", 31), ("h.0.attn.c_attn.weight", 0),
        ("encoder.block.5.layer.1.DenseReluDense.wi.weight", 5), ("vision_model.encoder.resblocks.2.ln_1.weight", 2),
        ("transformer_blocks.4.norm1.linear.weight", 4), ("blk.27.attn_q.weight", 27), ("model.embed_tokens.weight", None),
        ("classifier.0.weight", None), ("model.layers.99999999999999999999.x", None), ("model.layers.²", None), ("layers", None),
    ],
)  # fmt: skip
def test_layer(name: str, expected: int | None) -> None:
    assert layer(name) == expected


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        ("gpt_neox.layers.0.attention.masked_bias", (), "F32"), ("gpt_neox.layers.0.attention.bias", (1, 1, 2048, 2048), "BOOL"),
        ("h.0.attn.bias", (1, 1, 1024, 1024), "F32"), ("transformer.h.0.attn.attention.bias", (1, 1, 2048, 2048), "U8"),
        ("gpt_neox.layers.0.attention.rotary_emb.inv_freq", (16,), "F32"), ("model.rotary_emb.original_inv_freq", (16,), "F32"),
        ("bn1.running_mean", (64,), "F32"), ("bn1.running_var", (64,), "F32"), ("bn1.num_batches_tracked", (), "I64"),
        ("bert.embeddings.position_ids", (1, 512), "I64"), ("bert.embeddings.token_type_ids", (1, 512), "I64"),
        ("final_logits_bias", (1, 96103), "F32"), ("layers.0.attn.relative_position_index", (49, 49), "I64"),
        ("model.layers.0.self_attn.rotary_emb.cos_cached", (1, 1, 2048, 64), "F16"),
        ("model.encoder.embed_positions.weights", (1026, 1024), "F32"), ("anything.mask", (4, 4), "BOOL"),
        ("attn.causal_mask", (64, 64), "I8"), ("bits", (1, 64), "I8"), ("table", (64, 64), "U8"), ("rope_freqs.weight", (64,), "F32"),
        ("rope.freqs", (64,), "BF16"), ("layers.0.attention.rotary_emb.freqs", (32,), "F32"), ("rope_embed.periods", (16,), "F32"),
        ("freqs_cos", (128, 32), "F32"), ("model.diffusion_model.scaled_fp8", (2,), "F8_E4M3"),
        ("rope_factors_long.weight", (48,), "F32"), ("model.layers.0.mlp.down_proj.qzeros", (4, 64), "I32"),
        ("model.layers.0.mlp.down_proj.weight_shape", (2,), "I64"), ("model.layers.0.mlp.down_proj.weight.absmax", (64,), "U8"),
    ],
)  # fmt: skip
def test_buffers(name: str, shape: tuple[int, ...], dtype: str) -> None:
    assert is_buffer(name, shape, dtype)


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        ("h.0.attn.c_attn.bias", (2304,), "F32"), ("model.layers.0.attention.bias", (64,), "F32"), ("conv.bias", (1, 1, 3, 3), "F32"),
        ("model.layers.0.mlp.gate.e_score_correction_bias", (256,), "F32"),
        ("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", (32, 8), "F32"),
        ("model.layers.0.mlp.down_proj.qweight", (512, 512), "I32"), ("model.layers.0.mlp.down_proj.weight", (512, 512), "I8"),
        ("model.layers.0.mlp.down_proj.weight", (131072, 1), "U8"), ("transformer.h.0.fc", (64, 64), "I8"),
        ("experts.kernel", (8, 64, 64), "I8"), ("model.layers.0.mlp.experts.gate_up_proj_blocks", (32, 5760, 90, 16), "U8"),
        ("model.decoder.embed_positions.weight", (2050, 768), "F16"),
    ],
)  # fmt: skip
def test_parameters(name: str, shape: tuple[int, ...], dtype: str) -> None:
    assert not is_buffer(name, shape, dtype)


@pytest.mark.parametrize("text", ["rope" * 1024, "a_attn_" * 580, "1." * 2048, "h." * 2048, "_layers_" * 510])
def test_a_long_name_costs_no_more_than_a_short_one(text: str) -> None:
    """A header holds 250,000 names of 300 characters: what is looked for in one must not grow with it."""
    short = text[-100:]
    seconds = []
    for name in (short, text):
        start = process_time()
        for _ in range(500):
            role(name), layer(name), is_buffer(name, (2, 2), "F32")
        seconds.append(process_time() - start)
    assert seconds[1] < 4 * seconds[0] + 0.005, seconds
