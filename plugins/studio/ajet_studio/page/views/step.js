export async function stepView(page) { page.named('step'); throw new Error('not yet'); }
